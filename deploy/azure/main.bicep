// The service on Azure: two resource groups with everything that a cluster needs before its first node.
// deploy/azure/up sends main.json, which `make template` compiles of this file and its modules; docs/deploy.md.
targetScope = 'subscription'

@description('Name of the cluster: part of all names here, and of the names of its nodes.')
@minLength(1)
@maxLength(20)
param cluster string = 'remora'

@description('Region of everything, such as eastus.')
param region string

@description('Addresses and networks of the people who may reach the service, the vault and the storage, as 203.0.113.7 or 203.0.113.0/24.')
@minLength(1)
param operatorAddresses array

@description('Object id of the person or pipeline that deploys, who uploads releases; deploy/azure/up reads it from its token.')
@minLength(1)
param operatorId string

@description('Public key for SSH to the machines, as in id_ed25519.pub.')
@minLength(20)
param sshPublicKey string

@description('Where Azure sends a message when the budget is nearly spent.')
@minLength(3)
param notifyEmail string

@description('USD a month at which the message is sent; nothing is stopped by it.')
@minValue(1)
param budgetUsd int

@description('First day of the month in which the budget began; deploy/azure/up gives it.')
param budgetStart string

@description('Size of the machine with the API and the controller, and with the head where that has no machine of its own.')
param serviceSize string

@description('Processes of the API, at the ports 7265 and 7266, and controllers, of which one leads, on the machine of the service.')
@minValue(1)
@maxValue(2)
param serviceCount int = 1

@description('Size of the machine of the Ray head; empty: it is on the machine of the service.')
param headSize string = ''

@description('GiB of the disks of these machines.')
@minValue(64)
param diskGb int = 64

@description('A PostgreSQL server; without it the service uses SQLite on its own disk.')
param postgres bool = false

@description('Size of the PostgreSQL server.')
param postgresSize string = 'Standard_D2ds_v5'

@description('Storage and vault are reached by private addresses of the network alone, besides by the operators.')
param privateEndpoints bool = false

@description('The API listens beyond its machine, over TLS with the certificate that is in the vault.')
param publicApi bool = false

@description('Days for which a deleted vault keeps its name and its secrets.')
@minValue(7)
@maxValue(90)
param vaultRetentionDays int = 7

@description('recover: a vault of this name was deleted and is still kept; deploy/azure/up knows.')
@allowed([
  'default'
  'recover'
])
param vaultCreateMode string = 'default'

@description('Further regions or subscriptions for nodes: objects with name, region, network (such as 10.71.0.0/16) and, for another subscription, its id as subscription; deploy/azure/up --place makes them.')
@maxLength(16)
param furtherPlaces array = []

@description('Each other subscription in which there is, or was, a place: objects with id and budgetStart; deploy/azure/up knows.')
param otherSubscriptions array = []

@description('Version of the image of a node in the gallery; deploy/azure/up lets it be built where there is none.')
param imageVersion string = '1.0.0'

@description('Secret of the Ray cluster, for a vault that has none; deploy/azure/up makes it.')
@secure()
param rayToken string = ''

@description('Certificate and key of the authority of the Ray cluster, for a vault that has none; deploy/azure/up makes it.')
@secure()
param rayAuthority string = ''

@description('Password of the database, for a server that has none; deploy/azure/up makes it.')
@secure()
param postgresPassword string = ''

var serviceGroupName = 'remora-${cluster}'
var nodesGroupName = 'remora-${cluster}-nodes'
// Azure Image Builder makes this one for a build, and deletes it; deploy/azure/up names it.
var imageGroupName = 'remora-${cluster}_image'
var suffix = uniqueString(subscription().id, cluster)
var tags = {
  'remora:cluster': cluster
}
// In other subscriptions of the tenant there may be clusters of the same name: what stands beside theirs has this besides.
var own = take(subscription().subscriptionId, 8)
// By it deploy/azure/down finds the assignments after the identities are gone.
var mark = 'Remora ${cluster} of ${subscription().subscriptionId}'
var networkName = 'remora-${cluster}'

// No name of a cluster has an underscore: no group here is that of another cluster.
var places = [for place in furtherPlaces: {
  name: place.name
  region: place.region
  subscription: contains(place, 'subscription') ? place.subscription : subscription().subscriptionId
  group: 'remora-${cluster}-nodes_${place.name}'
  prefix: place.network
  // By these deploy/azure/up and down find the place again.
  tags: union(tags, {
    'remora:place': place.name
    'remora:network': place.network
    'remora:subscription': subscription().subscriptionId
  })
}]
var placePrefixes = [for place in places: place.prefix]
var placeSubscriptions = [for place in places: place.subscription]
var placeNetworks = [for place in places: {
  name: 'remora-${cluster}-${place.name}'
  id: '/subscriptions/${place.subscription}/resourceGroups/${place.group}/providers/Microsoft.Network/virtualNetworks/remora-${cluster}-${place.name}'
  subscription: place.subscription
  group: place.group
}]
var placeSubnets = [for one in placeNetworks: '${one.id}/subnets/nodes']
// Of each place what /etc/remora/azure.json says; all else is as in the first one.
var placeSettings = [for (place, number) in places: {
  name: place.name
  settings: {
    region: place.region
    resource_group: place.group
    subscription: place.subscription
    subnet: placeSubnets[number]
    network_security_group: '/subscriptions/${place.subscription}/resourceGroups/${place.group}/providers/Microsoft.Network/networkSecurityGroups/${placeNetworks[number].name}'
  }
}]
var networks = concat([
  {
    name: networkName
    id: '${subscription().id}/resourceGroups/${serviceGroupName}/providers/Microsoft.Network/virtualNetworks/${networkName}'
    subscription: subscription().subscriptionId
    group: serviceGroupName
  }
], placeNetworks)
var otherScopes = [for one in otherSubscriptions: '/subscriptions/${one.id}']
// A loop leaves nothing out: for a place of another subscription the group of the first one stands there once more.
var groupsHere = [for place in places: place.subscription == subscription().subscriptionId ? place.group : nodesGroupName]

resource serviceGroup 'Microsoft.Resources/resourceGroups@2024-11-01' = {
  name: serviceGroupName
  location: region
  tags: tags
}

resource nodesGroup 'Microsoft.Resources/resourceGroups@2024-11-01' = {
  name: nodesGroupName
  location: region
  tags: tags
}

module roles 'modules/roles.bicep' = {
  name: 'remora-${cluster}-roles'
  params: {
    cluster: cluster
    otherScopes: otherScopes
  }
}

module identities 'modules/identities.bicep' = {
  name: 'remora-${cluster}-identities'
  scope: serviceGroup
  params: {
    cluster: cluster
    region: region
    tags: tags
  }
}

module regionAccess 'modules/region-access.bicep' = {
  name: 'remora-${cluster}-region-access'
  params: {
    principalId: identities.outputs.servicePrincipalId
    regionRoleId: roles.outputs.regionRoleId
    mark: mark
  }
}

module nodesAccess 'modules/nodes-access.bicep' = {
  name: 'remora-${cluster}-nodes-access'
  scope: nodesGroup
  params: {
    principalId: identities.outputs.servicePrincipalId
    nodesRoleId: roles.outputs.nodesRoleId
    mark: mark
  }
}

module imageRole 'modules/image-role.bicep' = {
  name: 'remora-${cluster}-image-role'
  params: {
    cluster: cluster
  }
}

module imageAccess 'modules/image-access.bicep' = {
  name: 'remora-${cluster}-image-access'
  scope: serviceGroup
  params: {
    principalId: identities.outputs.builderPrincipalId
    builderRoleId: imageRole.outputs.builderRoleId
    mark: mark
  }
}

module logs 'modules/logs.bicep' = {
  name: 'remora-${cluster}-logs'
  scope: serviceGroup
  params: {
    cluster: cluster
    region: region
    tags: tags
  }
}

module network 'modules/network.bicep' = {
  name: 'remora-${cluster}-network'
  scope: serviceGroup
  params: {
    cluster: cluster
    region: region
    tags: tags
    operatorAddresses: operatorAddresses
    publicApi: publicApi
    serviceCount: serviceCount
    label: 'remora-${suffix}'
    placePrefixes: placePrefixes
  }
}

module furtherPlace 'modules/place.bicep' = [for place in places: {
  name: 'remora-${cluster}_place_${own}_${place.name}'
  scope: subscription(place.subscription)
  params: {
    cluster: cluster
    placeName: place.name
    region: place.region
    groupName: place.group
    tags: place.tags
    prefix: place.prefix
    neighbours: concat(network.outputs.insidePrefixes, placePrefixes)
    principalId: identities.outputs.servicePrincipalId
    nodesRoleId: '/subscriptions/${place.subscription}/providers/Microsoft.Authorization/roleDefinitions/${roles.outputs.nodesRoleName}'
    partsRoleId: '/subscriptions/${place.subscription}/providers/Microsoft.Authorization/roleDefinitions/${roles.outputs.partsRoleName}'
    mark: mark
  }
}]

module otherAccess 'modules/region-access.bicep' = [for one in otherSubscriptions: if (contains(placeSubscriptions, one.id)) {
  name: 'remora-${cluster}_place-region_${own}_${take(one.id, 8)}'
  scope: subscription(one.id)
  params: {
    principalId: identities.outputs.servicePrincipalId
    regionRoleId: '/subscriptions/${one.id}/providers/Microsoft.Authorization/roleDefinitions/${roles.outputs.regionRoleName}'
    mark: mark
  }
}]

@batchSize(1)
module peerings 'modules/peerings.bicep' = [for one in networks: if (!empty(furtherPlaces)) {
  name: 'remora-${cluster}-peerings'
  scope: resourceGroup(one.subscription, one.group)
  params: {
    networkName: one.name
    networks: networks
  }
  dependsOn: [
    network
    furtherPlace
  ]
}]

module vault 'modules/vault.bicep' = {
  name: 'remora-${cluster}-vault'
  scope: serviceGroup
  params: {
    cluster: cluster
    region: region
    tags: tags
    vaultName: 'remora-${suffix}'
    retentionDays: vaultRetentionDays
    createMode: vaultCreateMode
    operatorAddresses: operatorAddresses
    subnetIds: concat([
      network.outputs.serviceSubnetId
      network.outputs.nodesSubnetId
    ], placeSubnets)
    workspaceId: logs.outputs.workspaceId
    rayToken: rayToken
    rayAuthority: rayAuthority
    headPrincipalId: identities.outputs.headPrincipalId
    servicePrincipalId: identities.outputs.servicePrincipalId
    nodesPrincipalId: identities.outputs.nodesPrincipalId
    operatorPrincipalId: operatorId
    publicApi: publicApi
    mark: mark
  }
  // Azure refuses a rule or an endpoint of a network that is just being changed.
  dependsOn: [
    peerings
  ]
}

module storage 'modules/storage.bicep' = {
  name: 'remora-${cluster}-storage'
  scope: serviceGroup
  params: {
    region: region
    tags: tags
    accountName: 'remora${suffix}'
    operatorAddresses: operatorAddresses
    subnetIds: concat([
      network.outputs.serviceSubnetId
      network.outputs.nodesSubnetId
      network.outputs.builderSubnetId
    ], placeSubnets)
    workspaceId: logs.outputs.workspaceId
    headPrincipalId: identities.outputs.headPrincipalId
    servicePrincipalId: identities.outputs.servicePrincipalId
    builderPrincipalId: identities.outputs.builderPrincipalId
    operatorPrincipalId: operatorId
    mark: mark
  }
  // Azure refuses a rule or an endpoint of a network that is just being changed.
  dependsOn: [
    peerings
  ]
}

module database 'modules/database.bicep' = if (postgres) {
  name: 'remora-${cluster}-database'
  scope: serviceGroup
  params: {
    cluster: cluster
    region: region
    tags: tags
    serverName: 'remora-${suffix}'
    serverSize: postgresSize
    networkId: network.outputs.networkId
    subnetId: network.outputs.databaseSubnetId
    vaultName: vault.outputs.vaultName
    password: postgresPassword
    workspaceId: logs.outputs.workspaceId
  }
}

module endpoints 'modules/endpoints.bicep' = if (privateEndpoints) {
  name: 'remora-${cluster}-endpoints'
  scope: serviceGroup
  params: {
    cluster: cluster
    region: region
    tags: tags
    networkId: network.outputs.networkId
    subnetId: network.outputs.endpointsSubnetId
    vaultId: vault.outputs.vaultId
    accountId: storage.outputs.accountId
    placeNetworks: placeNetworks
  }
  // Azure refuses a rule or an endpoint of a network that is just being changed.
  dependsOn: [
    peerings
  ]
}

module images 'modules/images.bicep' = {
  name: 'remora-${cluster}-images'
  scope: serviceGroup
  params: {
    region: region
    tags: tags
    cluster: cluster
    partsRoleId: roles.outputs.partsRoleId
    servicePrincipalId: identities.outputs.servicePrincipalId
    nodesIdentityName: identities.outputs.nodesIdentityName
    networkName: network.outputs.networkName
    nodesRulesName: network.outputs.nodesRulesName
    mark: mark
  }
}

module machines 'modules/machines.bicep' = {
  name: 'remora-${cluster}-machines'
  scope: serviceGroup
  params: {
    cluster: cluster
    region: region
    tags: tags
    serviceSize: serviceSize
    serviceCount: serviceCount
    headSize: headSize
    diskGb: diskGb
    sshPublicKey: sshPublicKey
    subnetId: network.outputs.serviceSubnetId
    nodesSubnetId: network.outputs.nodesSubnetId
    nodesRulesId: network.outputs.nodesRulesId
    publicAddressId: network.outputs.serviceAddressId
    publicName: network.outputs.serviceName
    publicApi: publicApi
    headIdentityId: identities.outputs.headIdentityId
    headClientId: identities.outputs.headClientId
    serviceIdentityId: identities.outputs.serviceIdentityId
    serviceClientId: identities.outputs.serviceClientId
    nodesIdentityId: identities.outputs.nodesIdentityId
    nodesClientId: identities.outputs.nodesClientId
    nodesGroupName: nodesGroupName
    places: placeSettings
    vaultUri: vault.outputs.vaultUri
    accountName: storage.outputs.accountName
    blobEndpoint: storage.outputs.blobEndpoint
    imageId: '${images.outputs.imageId}/versions/${imageVersion}'
    databaseHost: postgres ? database.outputs.host : ''
  }
}

module budget 'modules/budget.bicep' = {
  name: 'remora-${cluster}-budget'
  params: {
    budgetName: 'remora-${cluster}'
    groupNames: union([
      serviceGroupName
      nodesGroupName
      imageGroupName
    ], groupsHere)
    budgetUsd: budgetUsd
    budgetStart: budgetStart
    notifyEmail: notifyEmail
  }
  dependsOn: [
    serviceGroup
    nodesGroup
    furtherPlace
  ]
}

// A budget is of one subscription: each other one has its own, of the same amount.
module otherBudget 'modules/budget.bicep' = [for one in otherSubscriptions: if (contains(placeSubscriptions, one.id)) {
  name: 'remora-${cluster}_place-budget_${own}_${take(one.id, 8)}'
  scope: subscription(one.id)
  params: {
    budgetName: 'remora-${cluster}_places_${own}'
    groupNames: [for place in places: place.subscription == one.id ? place.group : places[indexOf(placeSubscriptions, one.id)].group]
    budgetUsd: budgetUsd
    budgetStart: one.budgetStart
    notifyEmail: notifyEmail
  }
  dependsOn: [
    furtherPlace
  ]
}]

output serviceAddress string = network.outputs.serviceAddress
output serviceName string = network.outputs.serviceName
output servicePrivateAddress string = machines.outputs.servicePrivateAddress
output blobEndpoint string = storage.outputs.blobEndpoint
output vaultName string = vault.outputs.vaultName
output vaultUri string = vault.outputs.vaultUri
output gallery string = images.outputs.galleryName
// With these deploy/azure/up lets the image of a node be built.
output imageId string = images.outputs.imageId
output builderIdentityId string = identities.outputs.builderIdentityId
output builderSubnetId string = network.outputs.builderSubnetId
output nodesSubnetId string = network.outputs.nodesSubnetId
output serviceGroup string = serviceGroupName
output nodesGroup string = nodesGroupName
