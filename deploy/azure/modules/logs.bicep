// Where the vault, the storage and the database write who did what.
param cluster string
param region string
param tags object

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: 'remora-${cluster}'
  location: region
  tags: tags
  properties: {
    sku: {
      name: 'PerGB2018'
    }
    retentionInDays: 30
    // A loop that writes without end costs a dollar or two a day and no more.
    workspaceCapping: {
      dailyQuotaGb: 1
    }
  }
}

output workspaceId string = workspace.id
