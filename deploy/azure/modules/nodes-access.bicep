// What the controller does in the resource group of the nodes.
param principalId string
param nodesRoleId string
param mark string

resource nodes 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(resourceGroup().id, mark, 'nodes')
  properties: {
    roleDefinitionId: nodesRoleId
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}
