// What the controller reads of the whole subscription.
targetScope = 'subscription'

param principalId string
param regionRoleId string
param mark string

// Compute Recommendations Role: spot placement scores.
var recommendationsRoleId = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'e82342c9-ac7f-422b-af64-e426d2e12b2d')

resource region 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(subscription().id, mark, 'region')
  properties: {
    roleDefinitionId: regionRoleId
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource recommendations 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(subscription().id, mark, 'recommendations')
  properties: {
    roleDefinitionId: recommendationsRoleId
    principalId: principalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}
