// The machine of the service, and that of the head where it has one.  What a machine is to be is in its user data, which
// can be changed later; its start-up data only carries that out, and is the same for ever, as Azure refuses a change.
param cluster string
param region string
param tags object
param serviceSize string
param serviceCount int
param headSize string
param diskGb int
param sshPublicKey string
param subnetId string
param nodesSubnetId string
param nodesRulesId string
param publicAddressId string
param publicName string
param publicApi bool
param headIdentityId string
param headClientId string
param serviceIdentityId string
param serviceClientId string
param nodesIdentityId string
param nodesClientId string
param nodesGroupName string
param places array
param vaultUri string
param accountName string
param blobEndpoint string
param imageId string
param databaseHost string

// Fixed, as the settings name them: Azure keeps the first four addresses of a subnet.
var serviceIp = '10.70.0.4'
var headIp = empty(headSize) ? serviceIp : '10.70.0.5'
var headAddress = '${headIp}:6379'
var usesPostgres = !empty(databaseHost)
// A vault's address without the slash at its end.
var vault = take(vaultUri, length(vaultUri) - 1)

var everywhere = [
  'REMORA_HOME=/var/lib/remora'
  'REMORA_RAY_ADDRESS=${headAddress}'
]
var ofTheService = [
  'REMORA_CLOUD=azure'
  'REMORA_AZURE_FILE=/etc/remora/azure.json'
  'REMORA_STORAGE_URL=abfs://jobs@${accountName}.dfs.core.windows.net/remora'
  'REMORA_STORAGE_CREDENTIALS=/etc/remora/storage.json'
  'REMORA_AUTHENTICATION=required'
  'REMORA_PORT=7265'
]
var ofTheAddress = publicApi ? [
  'REMORA_HOST=0.0.0.0'
  'REMORA_PUBLIC_URL=https://${publicName}:7265'
  'REMORA_TLS_CERTIFICATE=/var/lib/remora/tls.pem'
  'REMORA_TLS_KEY=/var/lib/remora/tls.pem'
] : [
  'REMORA_HOST=127.0.0.1'
]
var serviceSettings = concat(everywhere, ofTheService, ofTheAddress)

var placeTexts = [for one in places: '"${one.name}":${string(one.settings)}']
// Without further places it is as it was before there could be any: no machine takes it for something new.
var furtherPlaces = empty(places) ? {} : {
  places: json('{${join(placeTexts, ',')}}')
}
var place = {
  subscription: subscription().subscriptionId
  resource_group: nodesGroupName
  region: region
  cluster: cluster
  subnet: nodesSubnetId
  network_security_group: nodesRulesId
  image: imageId
  ssh_public_key: sshPublicKey
  node_identity: nodesIdentityId
  node_identity_client_id: nodesClientId
  vault: vault
  controller_client_id: serviceClientId
}

var accounts = {
  '${accountName}': {
    client_id: serviceClientId
  }
}

// Each file that a secret of the vault becomes; the service finds the database by its password's file.
var tokenSecret = {
  'ray.token': 'remora-${cluster}-ray-token'
  'ray-tls/authority.pem': 'remora-${cluster}-ray-authority'
}
var databaseSecret = usesPostgres ? {
  'postgres.password': 'remora-${cluster}-postgres'
} : {}
var tlsSecret = publicApi ? {
  'tls.pem': 'remora-${cluster}-tls'
} : {}

var serviceDocument = {
  role: empty(headSize) ? 'both' : 'service'
  service_count: serviceCount
  client_id: serviceClientId
  vault: vault
  releases: '${blobEndpoint}releases'
  secrets: union(tokenSecret, databaseSecret, tlsSecret)
  database: databaseHost
  installer: loadTextContent('../machine/install.py')
  files: {
    '/etc/remora/service.env': join(serviceSettings, '\n')
    '/etc/remora/azure.json': string(union(place, furtherPlaces))
    '/etc/remora/storage.json': string(accounts)
  }
}

var headDocument = {
  role: 'head'
  client_id: headClientId
  vault: vault
  releases: '${blobEndpoint}releases'
  secrets: tokenSecret
  database: ''
  installer: loadTextContent('../machine/install.py')
  files: {
    '/etc/remora/service.env': join(everywhere, '\n')
  }
}

var startUp = base64(loadTextContent('../machine/start-up.yaml'))

module service 'machine.bicep' = {
  name: 'remora-${cluster}-machine-service'
  params: {
    machineName: 'remora-${cluster}-service'
    region: region
    tags: tags
    size: serviceSize
    diskGb: diskGb
    sshPublicKey: sshPublicKey
    subnetId: subnetId
    privateAddress: serviceIp
    publicAddressId: publicAddressId
    identities: empty(headSize) ? {
      '${serviceIdentityId}': {}
      '${headIdentityId}': {}
    } : {
      '${serviceIdentityId}': {}
    }
    startUp: startUp
    userData: base64(string(serviceDocument))
  }
}

module head 'machine.bicep' = if (!empty(headSize)) {
  name: 'remora-${cluster}-machine-head'
  params: {
    machineName: 'remora-${cluster}-head'
    region: region
    tags: tags
    size: headSize
    diskGb: diskGb
    sshPublicKey: sshPublicKey
    subnetId: subnetId
    privateAddress: headIp
    publicAddressId: ''
    identities: {
      '${headIdentityId}': {}
    }
    startUp: startUp
    userData: base64(string(headDocument))
  }
}

output servicePrivateAddress string = serviceIp
