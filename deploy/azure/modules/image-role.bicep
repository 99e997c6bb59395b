// What Azure Image Builder is to have with the identity that it is given, as Azure documents it for a gallery and a
// network of one's own; tests/contracts/deploy/test_azure_image.py looks at it.
targetScope = 'subscription'

param cluster string

resource builderRole 'Microsoft.Authorization/roleDefinitions@2022-04-01' = {
  name: guid(subscription().id, cluster, 'builder')
  properties: {
    roleName: 'Remora ${cluster} builder of ${subscription().subscriptionId}'
    description: 'Writes images of nodes into the gallery; assigned on the resource group of the service.'
    type: 'CustomRole'
    assignableScopes: [
      subscription().id
    ]
    permissions: [
      {
        actions: [
          'Microsoft.Compute/galleries/read'
          'Microsoft.Compute/galleries/images/read'
          'Microsoft.Compute/galleries/images/versions/read'
          'Microsoft.Compute/galleries/images/versions/write'
          'Microsoft.Compute/images/read'
          'Microsoft.Compute/images/write'
          'Microsoft.Compute/images/delete'
          'Microsoft.Network/virtualNetworks/read'
          'Microsoft.Network/virtualNetworks/subnets/join/action'
        ]
      }
    ]
  }
}

output builderRoleId string = builderRole.id
