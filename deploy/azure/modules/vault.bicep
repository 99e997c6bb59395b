// The vault: the secret with which nodes join, the password of the database, the certificate of the API.
param cluster string
param region string
param tags object
param vaultName string
param retentionDays int
param createMode string
param operatorAddresses array
param subnetIds array
param workspaceId string
param headPrincipalId string
param servicePrincipalId string
param nodesPrincipalId string
param mark string
param publicApi bool
param operatorPrincipalId string
@secure()
param rayToken string
@secure()
param rayAuthority string

// Key Vault Secrets User: reads values.
var secretsUserRoleId = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '4633458b-17de-408a-b874-0445c86b69e6')
// Key Vault Secrets Officer: writes them too.
var secretsOfficerRoleId = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'b86a8fe4-44ce-4948-aee5-eccb2c155cd7')
var tokenName = 'remora-${cluster}-ray-token'
var authorityName = 'remora-${cluster}-ray-authority'

resource vault 'Microsoft.KeyVault/vaults@2023-07-01' = {
  name: vaultName
  location: region
  tags: tags
  properties: {
    tenantId: subscription().tenantId
    createMode: createMode
    sku: {
      family: 'A'
      name: 'standard'
    }
    enableRbacAuthorization: true
    enableSoftDelete: true
    enablePurgeProtection: true
    softDeleteRetentionInDays: retentionDays
    publicNetworkAccess: 'Enabled'
    networkAcls: {
      bypass: 'AzureServices'
      defaultAction: 'Deny'
      ipRules: [for address in operatorAddresses: {
        value: address
      }]
      virtualNetworkRules: [for subnetId in subnetIds: {
        id: subnetId
      }]
    }
  }
}

// A secret that is there already keeps its value: deploy/azure/up then gives none.
resource token 'Microsoft.KeyVault/vaults/secrets@2023-07-01' = if (!empty(rayToken)) {
  // checkov:skip=CKV_AZURE_41:A service must not stop by itself on a day that was set years ago; the value is replaced by rotation.
  // checkov:skip=CKV_AZURE_114:contentType is set; this check looks for the name that Terraform has for it.
  parent: vault
  name: tokenName
  tags: tags
  properties: {
    value: rayToken
    contentType: 'text/plain'
  }
}

// By its certificates the processes of Ray know each other.
resource authority 'Microsoft.KeyVault/vaults/secrets@2023-07-01' = if (!empty(rayAuthority)) {
  // checkov:skip=CKV_AZURE_41:A service must not stop by itself on a day that was set years ago; the value is replaced by rotation.
  // checkov:skip=CKV_AZURE_114:contentType is set; this check looks for the name that Terraform has for it.
  parent: vault
  name: authorityName
  tags: tags
  properties: {
    value: rayAuthority
    contentType: 'application/x-pem-file'
  }
}

resource authorityOfNodes 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(vault.id, mark, 'nodes', 'authority')
  scope: authorityScope
  properties: {
    roleDefinitionId: secretsUserRoleId
    principalId: nodesPrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
  dependsOn: [
    authority
  ]
}

resource authorityOfHead 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(vault.id, mark, 'head', 'authority')
  scope: authorityScope
  properties: {
    roleDefinitionId: secretsUserRoleId
    principalId: headPrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
  dependsOn: [
    authority
  ]
}

resource authorityScope 'Microsoft.KeyVault/vaults/secrets@2023-07-01' existing = {
  parent: vault
  name: authorityName
}

// On the one secret alone, by its id: nodes run the scripts of jobs, and the head runs their drivers.
resource tokenOfNodes 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(vault.id, mark, 'nodes')
  scope: tokenScope
  properties: {
    roleDefinitionId: secretsUserRoleId
    principalId: nodesPrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
  dependsOn: [
    token
  ]
}

resource tokenOfHead 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(vault.id, mark, 'head')
  scope: tokenScope
  properties: {
    roleDefinitionId: secretsUserRoleId
    principalId: headPrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
  dependsOn: [
    token
  ]
}

resource tokenScope 'Microsoft.KeyVault/vaults/secrets@2023-07-01' existing = {
  parent: vault
  name: tokenName
}

resource allOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(vault.id, mark, 'service')
  scope: vault
  properties: {
    roleDefinitionId: secretsUserRoleId
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

// Who deploys puts the certificate of the API there.
resource allOfOperator 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (publicApi) {
  name: guid(vault.id, mark, 'operator', operatorPrincipalId)
  scope: vault
  properties: {
    roleDefinitionId: secretsOfficerRoleId
    principalId: operatorPrincipalId
    description: mark
  }
}

resource audit 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'remora'
  scope: vault
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'AuditEvent'
        enabled: true
      }
    ]
  }
}

output vaultId string = vault.id
output vaultName string = vault.name
output vaultUri string = vault.properties.vaultUri
