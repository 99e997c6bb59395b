// One network's half of its peerings with all others: nodes of all places reach the head and each other.
param networkName string
// All networks, each with its name and its id.
param networks array

resource network 'Microsoft.Network/virtualNetworks@2024-05-01' existing = {
  name: networkName
}

// One after another: Azure refuses a change of a network while another one runs.
@batchSize(1)
resource peerings 'Microsoft.Network/virtualNetworks/virtualNetworkPeerings@2024-05-01' = [for other in networks: if (other.name != networkName) {
  parent: network
  name: other.name
  properties: {
    remoteVirtualNetwork: {
      id: other.id
    }
    allowVirtualNetworkAccess: true
    allowForwardedTraffic: false
    allowGatewayTransit: false
    useRemoteGateways: false
  }
}]
