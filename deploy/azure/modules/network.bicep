// One network: subnets of the service, of the nodes, of what builds their image, of private endpoints and of the database.  No node has a public
// address: what it sends goes out by the NAT gateway, and nothing comes in but from the network itself.
param cluster string
param region string
param tags object
param operatorAddresses array
param publicApi bool
param serviceCount int
param label string
param placePrefixes array

var servicePrefix = '10.70.0.0/24'
var endpointsPrefix = '10.70.1.0/24'
var databasePrefix = '10.70.2.0/24'
// What builds images of nodes comes from here to its machine, which is among the nodes.
var builderPrefix = '10.70.3.0/24'
// InfiniBand reserves 172.16.0.0/16, which nothing here may overlap.
var nodesPrefix = '10.70.128.0/17'
var insidePrefixes = [
  servicePrefix
  nodesPrefix
]
var sshPort = '22'
// One for each process of the API.
var apiPorts = serviceCount == 1 ? '7265' : '7265-7266'

resource natAddress 'Microsoft.Network/publicIPAddresses@2024-05-01' = {
  name: 'remora-${cluster}-nat'
  location: region
  tags: tags
  sku: {
    name: 'Standard'
  }
  properties: {
    publicIPAllocationMethod: 'Static'
  }
}

resource nat 'Microsoft.Network/natGateways@2024-05-01' = {
  name: 'remora-${cluster}'
  location: region
  tags: tags
  sku: {
    name: 'Standard'
  }
  properties: {
    idleTimeoutInMinutes: 10
    publicIpAddresses: [
      {
        id: natAddress.id
      }
    ]
  }
}

resource serviceAddress 'Microsoft.Network/publicIPAddresses@2024-05-01' = {
  name: 'remora-${cluster}-service'
  location: region
  tags: tags
  sku: {
    name: 'Standard'
  }
  properties: {
    publicIPAllocationMethod: 'Static'
    dnsSettings: {
      domainNameLabel: label
    }
  }
}

resource serviceRules 'Microsoft.Network/networkSecurityGroups@2024-05-01' = {
  name: 'remora-${cluster}-service'
  location: region
  tags: tags
  properties: {
    securityRules: [
      {
        name: 'operators'
        properties: {
          priority: 100
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefixes: operatorAddresses
          sourcePortRange: '*'
          destinationAddressPrefix: servicePrefix
          destinationPortRanges: publicApi ? [
            sshPort
            apiPorts
          ] : [
            sshPort
          ]
        }
      }
      {
        name: 'nodes-and-head'
        properties: {
          priority: 110
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourceAddressPrefixes: concat(insidePrefixes, placePrefixes)
          sourcePortRange: '*'
          destinationAddressPrefix: servicePrefix
          destinationPortRange: '*'
        }
      }
      {
        name: 'nothing-else'
        properties: {
          priority: 4096
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourceAddressPrefix: '*'
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
    ]
  }
}

resource nodesRules 'Microsoft.Network/networkSecurityGroups@2024-05-01' = {
  name: 'remora-${cluster}-nodes'
  location: region
  tags: tags
  properties: {
    securityRules: [
      {
        name: 'nodes-and-head'
        properties: {
          priority: 110
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourceAddressPrefixes: concat(insidePrefixes, placePrefixes)
          sourcePortRange: '*'
          destinationAddressPrefix: nodesPrefix
          destinationPortRange: '*'
        }
      }
      {
        name: 'builder'
        properties: {
          priority: 120
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefixes: [
            builderPrefix
          ]
          sourcePortRange: '*'
          destinationAddressPrefix: nodesPrefix
          destinationPortRange: sshPort
        }
      }
      {
        name: 'nothing-else'
        properties: {
          priority: 4096
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourceAddressPrefix: '*'
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
    ]
  }
}

resource network 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: 'remora-${cluster}'
  location: region
  tags: tags
  properties: {
    addressSpace: {
      addressPrefixes: [
        '10.70.0.0/16'
      ]
    }
    // All of them here: a subnet that stands apart is taken away when the network is deployed again.
    subnets: [
      {
        name: 'service'
        properties: {
          addressPrefix: servicePrefix
          networkSecurityGroup: {
            id: serviceRules.id
          }
          natGateway: {
            id: nat.id
          }
          serviceEndpoints: [
            {
              service: 'Microsoft.KeyVault'
            }
            {
              service: 'Microsoft.Storage'
            }
          ]
        }
      }
      {
        name: 'nodes'
        properties: {
          addressPrefix: nodesPrefix
          defaultOutboundAccess: false
          networkSecurityGroup: {
            id: nodesRules.id
          }
          natGateway: {
            id: nat.id
          }
          serviceEndpoints: [
            {
              service: 'Microsoft.KeyVault'
            }
            {
              service: 'Microsoft.Storage'
            }
          ]
        }
      }
      {
        name: 'builder'
        properties: {
          addressPrefix: builderPrefix
          defaultOutboundAccess: false
          networkSecurityGroup: {
            id: nodesRules.id
          }
          natGateway: {
            id: nat.id
          }
          serviceEndpoints: [
            {
              service: 'Microsoft.Storage'
            }
          ]
          delegations: [
            {
              name: 'containers'
              properties: {
                serviceName: 'Microsoft.ContainerInstance/containerGroups'
              }
            }
          ]
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: endpointsPrefix
          networkSecurityGroup: {
            id: serviceRules.id
          }
          privateEndpointNetworkPolicies: 'Disabled'
        }
      }
      {
        name: 'database'
        properties: {
          addressPrefix: databasePrefix
          delegations: [
            {
              name: 'postgres'
              properties: {
                serviceName: 'Microsoft.DBforPostgreSQL/flexibleServers'
              }
            }
          ]
        }
      }
    ]
  }
}

output insidePrefixes array = insidePrefixes
output networkId string = network.id
output networkName string = network.name
output serviceSubnetId string = '${network.id}/subnets/service'
output nodesSubnetId string = '${network.id}/subnets/nodes'
output builderSubnetId string = '${network.id}/subnets/builder'
output endpointsSubnetId string = '${network.id}/subnets/endpoints'
output databaseSubnetId string = '${network.id}/subnets/database'
output nodesRulesId string = nodesRules.id
output nodesRulesName string = nodesRules.name
output serviceAddressId string = serviceAddress.id
output serviceAddress string = serviceAddress.properties.ipAddress
output serviceName string = serviceAddress.properties.dnsSettings.fqdn
