// The gallery that deploy/azure/up lets the image of a node be built into, and the right to use the parts of a node.
param region string
param tags object
param cluster string
param partsRoleId string
param servicePrincipalId string
param nodesIdentityName string
param networkName string
param nodesRulesName string
param mark string

resource gallery 'Microsoft.Compute/galleries@2023-07-03' = {
  name: 'remora_${replace(cluster, '-', '_')}'
  location: region
  tags: tags
  properties: {}
}

// It does not require trusted launch: under secure boot drivers of GPUs do not load.
resource image 'Microsoft.Compute/galleries/images@2023-07-03' = {
  parent: gallery
  name: 'remora-node'
  location: region
  tags: tags
  properties: {
    osType: 'Linux'
    osState: 'Generalized'
    hyperVGeneration: 'V2'
    architecture: 'x64'
    identifier: {
      publisher: 'remora'
      offer: 'node'
      sku: 'ubuntu-hpc-2404'
    }
  }
}

resource imageOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(image.id, mark)
  scope: image
  properties: {
    roleDefinitionId: partsRoleId
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' existing = {
  name: nodesIdentityName
}

resource identityOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(identity.id, mark)
  scope: identity
  properties: {
    roleDefinitionId: partsRoleId
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource network 'Microsoft.Network/virtualNetworks@2024-05-01' existing = {
  name: networkName
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
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource rules 'Microsoft.Network/networkSecurityGroups@2024-05-01' existing = {
  name: nodesRulesName
}

resource rulesOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(rules.id, mark)
  scope: rules
  properties: {
    roleDefinitionId: partsRoleId
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

output galleryName string = gallery.name
output imageId string = image.id
