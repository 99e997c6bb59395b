// Checkpoints, outputs and code of jobs, and the wheels of releases.  No key of the account works: the service signs
// tokens with its identity.
param region string
param tags object
param accountName string
param operatorAddresses array
param subnetIds array
param workspaceId string
param headPrincipalId string
param servicePrincipalId string
param builderPrincipalId string
param operatorPrincipalId string
param mark string

// Storage Blob Data Contributor, Reader and Delegator.
var contributorRoleId = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'ba92f5b4-2d11-453d-a403-e96b0029c9fe')
var readerRoleId = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '2a2b9908-6ea1-4ae2-8e65-a410df84e7d1')
var delegatorRoleId = subscriptionResourceId('Microsoft.Authorization/roleDefinitions', 'db58b8e5-c6ad-4a2a-8342-4190687cbf4a')

resource account 'Microsoft.Storage/storageAccounts@2023-05-01' = {
  // checkov:skip=CKV_AZURE_59:Public networks are denied but for the addresses of operators, who upload releases.
  // checkov:skip=CKV_AZURE_206:Three copies in one datacentre, beside the machines: results that must outlive it are copied elsewhere.
  // checkov:skip=CKV_AZURE_43:The name is computed; the check reads the expression as the name.
  name: accountName
  location: region
  tags: tags
  kind: 'StorageV2'
  sku: {
    name: 'Standard_LRS'
  }
  properties: {
    accessTier: 'Hot'
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    isHnsEnabled: true
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    publicNetworkAccess: 'Enabled'
    networkAcls: {
      bypass: 'AzureServices'
      defaultAction: 'Deny'
      ipRules: [for address in operatorAddresses: {
        action: 'Allow'
        value: address
      }]
      virtualNetworkRules: [for subnetId in subnetIds: {
        id: subnetId
        action: 'Allow'
      }]
    }
  }
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' = {
  parent: account
  name: 'default'
  properties: {
    deleteRetentionPolicy: {
      enabled: true
      days: 7
    }
    containerDeleteRetentionPolicy: {
      enabled: true
      days: 7
    }
  }
}

resource jobs 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' = {
  parent: blobs
  name: 'jobs'
  properties: {
    publicAccess: 'None'
  }
}

resource releases 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' = {
  parent: blobs
  name: 'releases'
  properties: {
    publicAccess: 'None'
  }
}

// Moves what has not been written to for a quarter of a year; the service itself deletes what nothing needs.
resource lifecycle 'Microsoft.Storage/storageAccounts/managementPolicies@2023-05-01' = {
  parent: account
  name: 'default'
  properties: {
    policy: {
      rules: [
        {
          name: 'old-results-are-stored-cheaply'
          enabled: true
          type: 'Lifecycle'
          definition: {
            filters: {
              blobTypes: [
                'blockBlob'
              ]
              prefixMatch: [
                'jobs/'
              ]
            }
            actions: {
              baseBlob: {
                tierToCool: {
                  daysAfterModificationGreaterThan: 90
                }
              }
            }
          }
        }
      ]
    }
  }
}

resource jobsOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, mark, 'jobs')
  scope: jobs
  properties: {
    roleDefinitionId: contributorRoleId
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource tokensOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, mark, 'tokens')
  scope: account
  properties: {
    roleDefinitionId: delegatorRoleId
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource releasesOfService 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, mark, 'releases-service')
  scope: releases
  properties: {
    roleDefinitionId: readerRoleId
    principalId: servicePrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

resource releasesOfHead 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, mark, 'releases-head')
  scope: releases
  properties: {
    roleDefinitionId: readerRoleId
    principalId: headPrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

// What the image of a node is made of lies beside the wheels.
resource releasesOfBuilder 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, mark, 'releases-builder')
  scope: releases
  properties: {
    roleDefinitionId: readerRoleId
    principalId: builderPrincipalId
    principalType: 'ServicePrincipal'
    description: mark
  }
}

// Of the person or pipeline that deploys: deploy/azure/up uploads the wheel.
resource releasesOfOperator 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, mark, 'releases', operatorPrincipalId)
  scope: releases
  properties: {
    roleDefinitionId: contributorRoleId
    principalId: operatorPrincipalId
    description: mark
  }
}

resource audit 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'remora'
  scope: blobs
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'StorageWrite'
        enabled: true
      }
      {
        category: 'StorageDelete'
        enabled: true
      }
    ]
  }
}

output accountId string = account.id
output accountName string = account.name
output blobEndpoint string = account.properties.primaryEndpoints.blob
