// The network of a further place: one subnet of nodes, which go out by a gateway of their own and have no public address,
// as in network.bicep.
param networkName string
param region string
param tags object
param prefix string
param neighbours array
param principalId string
param partsRoleId string
param mark string

resource natAddress 'Microsoft.Network/publicIPAddresses@2024-05-01' = {
  name: '${networkName}-nat'
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
  name: networkName
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

resource rules 'Microsoft.Network/networkSecurityGroups@2024-05-01' = {
  name: networkName
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
          sourceAddressPrefixes: neighbours
          sourcePortRange: '*'
          destinationAddressPrefix: prefix
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

resource network 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: networkName
  location: region
  tags: tags
  properties: {
    addressSpace: {
      addressPrefixes: [
        prefix
      ]
    }
    subnets: [
      {
        name: 'nodes'
        properties: {
          addressPrefix: prefix
          defaultOutboundAccess: false
          networkSecurityGroup: {
            id: rules.id
          }
          natGateway: {
            id: nat.id
          }
          // The storage is in another region: its endpoint of the region alone would not do.
          serviceEndpoints: [
            {
              service: 'Microsoft.KeyVault'
            }
            {
              service: 'Microsoft.Storage.Global'
            }
          ]
        }
      }
    ]
  }
}

resource subnet 'Microsoft.Network/virtualNetworks/subnets@2024-05-01' existing = {
  parent: network
  name: 'nodes'
}

resource subnetOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(subnet.id, mark)
  scope: subnet
  properties: {
    roleDefinitionId: partsRoleId
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource rulesOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(rules.id, mark)
  scope: rules
  properties: {
    roleDefinitionId: partsRoleId
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}
