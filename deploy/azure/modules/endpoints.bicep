// Private addresses of the vault and of the storage, and the names by which the network finds them.
param cluster string
param region string
param tags object
param networkId string
param subnetId string
param vaultId string
param accountId string
param placeNetworks array

module vault 'endpoint.bicep' = {
  name: 'remora-${cluster}-endpoint-vault'
  params: {
    endpointName: 'remora-${cluster}-vault'
    region: region
    tags: tags
    networkId: networkId
    placeNetworks: placeNetworks
    subnetId: subnetId
    targetId: vaultId
    groupId: 'vault'
    zoneName: 'privatelink.vaultcore.azure.net'
  }
}

module blob 'endpoint.bicep' = {
  name: 'remora-${cluster}-endpoint-blob'
  params: {
    endpointName: 'remora-${cluster}-blob'
    region: region
    tags: tags
    networkId: networkId
    placeNetworks: placeNetworks
    subnetId: subnetId
    targetId: accountId
    groupId: 'blob'
    zoneName: 'privatelink.blob.core.windows.net'
  }
}

module dfs 'endpoint.bicep' = {
  name: 'remora-${cluster}-endpoint-dfs'
  params: {
    endpointName: 'remora-${cluster}-dfs'
    region: region
    tags: tags
    networkId: networkId
    placeNetworks: placeNetworks
    subnetId: subnetId
    targetId: accountId
    groupId: 'dfs'
    zoneName: 'privatelink.dfs.core.windows.net'
  }
}
