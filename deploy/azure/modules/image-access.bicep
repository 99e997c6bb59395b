// What Azure Image Builder does in the resource group of the service.
param principalId string
param builderRoleId string
param mark string

resource builder 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(resourceGroup().id, mark, 'builder')
  properties: {
    roleDefinitionId: builderRoleId
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}
