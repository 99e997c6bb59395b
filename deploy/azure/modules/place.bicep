// A further place: the resource group of its nodes in another region or subscription, their network, and what the
// controller may do there.
targetScope = 'subscription'

param cluster string
param placeName string
param region string
param groupName string
param tags object
param prefix string
param neighbours array
param principalId string
param nodesRoleId string
param partsRoleId string
param mark string

resource group 'Microsoft.Resources/resourceGroups@2024-11-01' = {
  name: groupName
  location: region
  tags: tags
}

module network 'place-network.bicep' = {
  name: 'remora-${cluster}-network'
  scope: group
  params: {
    networkName: 'remora-${cluster}-${placeName}'
    region: region
    tags: tags
    prefix: prefix
    neighbours: neighbours
    principalId: principalId
    partsRoleId: partsRoleId
    mark: mark
  }
}

module nodesAccess 'nodes-access.bicep' = {
  name: 'remora-${cluster}-nodes-access'
  scope: group
  params: {
    principalId: principalId
    nodesRoleId: nodesRoleId
    mark: mark
  }
}
