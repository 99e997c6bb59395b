// What the controller asks of Azure, and no more: tests/contracts/cluster/test_azure_roles.py compares with its requests.
// Their names are unique in the tenant, and by them deploy/azure/up and down know the first subscription of the cluster.
targetScope = 'subscription'

param cluster string
// Other subscriptions with nodes.  From here on deploy/azure/down finds what is made there.
param otherScopes array

var scopes = concat([
  subscription().id
], otherScopes)

resource nodesRole 'Microsoft.Authorization/roleDefinitions@2022-04-01' = {
  name: guid(subscription().id, cluster, 'nodes')
  properties: {
    roleName: 'Remora ${cluster} nodes of ${subscription().subscriptionId}'
    description: 'Makes and ends the nodes of a cluster; assigned on the resource groups of the nodes.'
    type: 'CustomRole'
    assignableScopes: scopes
    permissions: [
      {
        actions: [
          'Microsoft.Compute/virtualMachines/read'
          'Microsoft.Compute/virtualMachines/write'
          'Microsoft.Compute/virtualMachines/delete'
          'Microsoft.Compute/virtualMachines/instanceView/read'
          'Microsoft.Compute/virtualMachineScaleSets/read'
          'Microsoft.Compute/virtualMachineScaleSets/write'
          'Microsoft.Compute/virtualMachineScaleSets/delete'
          'Microsoft.Compute/virtualMachineScaleSets/delete/action'
          'Microsoft.Compute/virtualMachineScaleSets/instanceView/read'
          'Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read'
          'Microsoft.Compute/virtualMachineScaleSets/virtualMachines/write'
          'Microsoft.Compute/virtualMachineScaleSets/virtualMachines/instanceView/read'
          'Microsoft.Compute/disks/read'
          'Microsoft.Compute/disks/write'
          'Microsoft.Compute/disks/delete'
          'Microsoft.Network/networkInterfaces/read'
          'Microsoft.Network/networkInterfaces/write'
          'Microsoft.Network/networkInterfaces/delete'
          'Microsoft.Network/networkInterfaces/join/action'
        ]
      }
    ]
  }
}

resource partsRole 'Microsoft.Authorization/roleDefinitions@2022-04-01' = {
  name: guid(subscription().id, cluster, 'parts')
  properties: {
    roleName: 'Remora ${cluster} parts of ${subscription().subscriptionId}'
    description: 'Uses one part of a node: its subnet, its rules, its image or its identity; assigned on each of these.'
    type: 'CustomRole'
    assignableScopes: scopes
    permissions: [
      {
        actions: [
          'Microsoft.Compute/galleries/images/read'
          'Microsoft.Compute/galleries/images/versions/read'
          'Microsoft.ManagedIdentity/userAssignedIdentities/assign/action'
          'Microsoft.ManagedIdentity/userAssignedIdentities/read'
          'Microsoft.Network/networkSecurityGroups/join/action'
          'Microsoft.Network/virtualNetworks/subnets/join/action'
          'Microsoft.Network/virtualNetworks/subnets/read'
        ]
      }
    ]
  }
}

resource regionRole 'Microsoft.Authorization/roleDefinitions@2022-04-01' = {
  name: guid(subscription().id, cluster, 'region')
  properties: {
    roleName: 'Remora ${cluster} region of ${subscription().subscriptionId}'
    description: 'Reads quotas, sizes and operations of a region; assigned on the subscription.'
    type: 'CustomRole'
    assignableScopes: scopes
    permissions: [
      {
        actions: [
          'Microsoft.Compute/locations/operations/read'
          'Microsoft.Compute/locations/usages/read'
          'Microsoft.Compute/skus/read'
        ]
      }
    ]
  }
}

output nodesRoleId string = nodesRole.id
output partsRoleId string = partsRole.id
output regionRoleId string = regionRole.id
output nodesRoleName string = nodesRole.name
output partsRoleName string = partsRole.name
output regionRoleName string = regionRole.name
