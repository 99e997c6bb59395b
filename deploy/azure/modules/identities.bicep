// Who the processes are for Azure: the head, the service (API and controller), the nodes, and what builds their image.
param cluster string
param region string
param tags object

resource head 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'remora-${cluster}-head'
  location: region
  tags: tags
}

resource service 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'remora-${cluster}-service'
  location: region
  tags: tags
}

resource nodes 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'remora-${cluster}-nodes'
  location: region
  tags: tags
}

resource builder 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: 'remora-${cluster}-builder'
  location: region
  tags: tags
}

output headIdentityId string = head.id
output headPrincipalId string = head.properties.principalId
output headClientId string = head.properties.clientId
output serviceIdentityId string = service.id
output servicePrincipalId string = service.properties.principalId
output serviceClientId string = service.properties.clientId
output nodesIdentityId string = nodes.id
output nodesIdentityName string = nodes.name
output nodesPrincipalId string = nodes.properties.principalId
output nodesClientId string = nodes.properties.clientId
output builderIdentityId string = builder.id
output builderPrincipalId string = builder.properties.principalId
