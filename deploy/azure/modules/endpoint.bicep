// One private endpoint with its zone of names.
param endpointName string
param region string
param tags object
param networkId string
// Of further places, which reach the endpoint by a peering.
param placeNetworks array
param subnetId string
param targetId string
param groupId string
param zoneName string

resource zone 'Microsoft.Network/privateDnsZones@2024-06-01' = {
  name: zoneName
  location: 'global'
  tags: tags
}

resource link 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = {
  parent: zone
  name: endpointName
  location: 'global'
  tags: tags
  properties: {
    registrationEnabled: false
    virtualNetwork: {
      id: networkId
    }
  }
}

@batchSize(1)
resource placeLinks 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [for one in placeNetworks: {
  parent: zone
  // A place may be called vault, as the link above.
  name: '${one.name}_place'
  location: 'global'
  tags: tags
  properties: {
    registrationEnabled: false
    virtualNetwork: {
      id: one.id
    }
  }
}]

resource endpoint 'Microsoft.Network/privateEndpoints@2024-05-01' = {
  name: endpointName
  location: region
  tags: tags
  properties: {
    subnet: {
      id: subnetId
    }
    privateLinkServiceConnections: [
      {
        name: endpointName
        properties: {
          privateLinkServiceId: targetId
          groupIds: [
            groupId
          ]
        }
      }
    ]
  }
}

resource names 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-05-01' = {
  parent: endpoint
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: 'default'
        properties: {
          privateDnsZoneId: zone.id
        }
      }
    ]
  }
}
