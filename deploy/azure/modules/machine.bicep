// One machine of the service, with its network interface and its disk.
param machineName string
param region string
param tags object
param size string
param diskGb int
param sshPublicKey string
param subnetId string
param privateAddress string
param publicAddressId string
param identities object
param startUp string
param userData string

var adminName = 'remora-admin'

resource interface 'Microsoft.Network/networkInterfaces@2024-05-01' = {
  name: machineName
  location: region
  tags: tags
  properties: {
    ipConfigurations: [
      {
        name: 'default'
        properties: {
          subnet: {
            id: subnetId
          }
          privateIPAllocationMethod: 'Static'
          privateIPAddress: privateAddress
          publicIPAddress: empty(publicAddressId) ? null : {
            id: publicAddressId
          }
        }
      }
    ]
  }
}

resource machine 'Microsoft.Compute/virtualMachines@2024-07-01' = {
  // checkov:skip=CKV_AZURE_151:It runs Linux; its disks are encrypted at rest, and encryption at host has to be registered first.
  // checkov:skip=CKV_AZURE_97:It is no scale set; encryption at host has to be registered for a subscription first.
  name: machineName
  location: region
  tags: tags
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: identities
  }
  properties: {
    hardwareProfile: {
      vmSize: size
    }
    storageProfile: {
      // Which version is newest matters when the machine is made, and never again.
      imageReference: {
        publisher: 'Canonical'
        offer: 'ubuntu-24_04-lts'
        sku: 'server'
        version: 'latest'
      }
      osDisk: {
        name: machineName
        createOption: 'FromImage'
        deleteOption: 'Delete'
        diskSizeGB: diskGb
        managedDisk: {
          storageAccountType: 'StandardSSD_LRS'
        }
      }
    }
    networkProfile: {
      networkInterfaces: [
        {
          id: interface.id
          properties: {
            deleteOption: 'Delete'
          }
        }
      ]
    }
    osProfile: {
      computerName: machineName
      adminUsername: adminName
      allowExtensionOperations: false
      customData: startUp
      linuxConfiguration: {
        disablePasswordAuthentication: true
        ssh: {
          publicKeys: [
            {
              path: '/home/${adminName}/.ssh/authorized_keys'
              keyData: sshPublicKey
            }
          ]
        }
      }
    }
    userData: userData
    securityProfile: {
      securityType: 'TrustedLaunch'
      uefiSettings: {
        secureBootEnabled: true
        vTpmEnabled: true
      }
    }
    diagnosticsProfile: {
      bootDiagnostics: {
        enabled: true
      }
    }
  }
}
