// PostgreSQL without a public address; its password is in the vault.
param cluster string
param region string
param tags object
param serverName string
param serverSize string
param networkId string
param subnetId string
param vaultName string
param workspaceId string
@secure()
param password string

var zoneName = 'remora-${cluster}.private.postgres.database.azure.com'

resource zone 'Microsoft.Network/privateDnsZones@2024-06-01' = {
  name: zoneName
  location: 'global'
  tags: tags
}

resource link 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = {
  parent: zone
  name: 'remora-${cluster}'
  location: 'global'
  tags: tags
  properties: {
    registrationEnabled: false
    virtualNetwork: {
      id: networkId
    }
  }
}

resource server 'Microsoft.DBforPostgreSQL/flexibleServers@2024-08-01' = {
  name: serverName
  location: region
  tags: tags
  sku: {
    name: serverSize
    tier: 'GeneralPurpose'
  }
  properties: {
    version: '16'
    administratorLogin: 'remora'
    // Of a server that has one it stays as it is.
    administratorLoginPassword: empty(password) ? null : password
    authConfig: {
      passwordAuth: 'Enabled'
      activeDirectoryAuth: 'Disabled'
    }
    storage: {
      storageSizeGB: 64
      autoGrow: 'Enabled'
    }
    backup: {
      backupRetentionDays: 14
      geoRedundantBackup: 'Disabled'
    }
    highAvailability: {
      mode: 'Disabled'
    }
    network: {
      delegatedSubnetResourceId: subnetId
      privateDnsZoneArmResourceId: zone.id
      publicNetworkAccess: 'Disabled'
    }
  }
  dependsOn: [
    link
  ]
}

resource base 'Microsoft.DBforPostgreSQL/flexibleServers/databases@2024-08-01' = {
  parent: server
  name: 'remora'
  properties: {
    charset: 'UTF8'
    collation: 'en_US.utf8'
  }
}

resource vault 'Microsoft.KeyVault/vaults@2023-07-01' existing = {
  name: vaultName
}

// After the server has taken it: what the vault has is the password that works.
resource secret 'Microsoft.KeyVault/vaults/secrets@2023-07-01' = if (!empty(password)) {
  // checkov:skip=CKV_AZURE_41:A service must not stop by itself on a day that was set years ago; the value is replaced by rotation.
  // checkov:skip=CKV_AZURE_114:contentType is set; this check looks for the name that Terraform has for it.
  parent: vault
  name: 'remora-${cluster}-postgres'
  tags: tags
  properties: {
    value: password
    contentType: 'text/plain'
  }
  dependsOn: [
    server
  ]
}

resource audit 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'remora'
  scope: server
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'PostgreSQLLogs'
        enabled: true
      }
    ]
  }
}

output host string = server.properties.fullyQualifiedDomainName
