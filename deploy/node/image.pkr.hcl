# Builds the image of a node into a compute gallery, out of a pinned version of Azure's ubuntu-hpc image, which brings the
# GPU driver, CUDA, NCCL and the drivers of InfiniBand.  deploy/azure/up does the same without Packer, by Azure Image
# Builder; docs/azure-first-run.md says how to call this where there is no such service.

packer {
  required_plugins {
    azure = {
      source  = "github.com/hashicorp/azure"
      version = ">= 2.3.0, < 3.0.0"
    }
  }
}

variable "subscription" {
  type = string
}

variable "region" {
  type = string
}

variable "further_regions" {
  type        = list(string)
  default     = []
  description = "Regions of further places: nodes there start from a copy of their own."
}

variable "gallery_group" {
  type        = string
  description = "Resource group of the gallery."
}

variable "gallery" {
  type = string
}

variable "image_version" {
  type        = string
  description = "Version of the new image, such as 1.0.0."
}

variable "base_sku" {
  type    = string
  default = "2404"
}

variable "base_version" {
  type        = string
  description = "az vm image list --publisher microsoft-dsvm --offer ubuntu-hpc --sku 2404 --all"

  validation {
    condition     = var.base_version != "latest"
    error_message = "The newest one is another one next quarter: name a version."
  }
}

variable "source" {
  type        = string
  default     = "remora.tar.gz"
  description = "What git archive wrote."
}

variable "python" {
  type        = string
  default     = "python3"
  description = "Of the same minor version as the head's."
}

variable "build_size" {
  type        = string
  default     = "Standard_D8s_v5"
  description = "The machine that builds needs no GPU."
}

source "azure-arm" "node" {
  use_azure_cli_auth = true
  subscription_id    = var.subscription
  location           = var.region
  vm_size            = var.build_size
  os_type            = "Linux"
  os_disk_size_gb    = 128
  image_publisher    = "microsoft-dsvm"
  image_offer        = "ubuntu-hpc"
  image_sku          = var.base_sku
  image_version      = var.base_version

  shared_image_gallery_destination {
    subscription         = var.subscription
    resource_group       = var.gallery_group
    gallery_name         = var.gallery
    image_name           = "remora-node"
    image_version        = var.image_version
    replication_regions  = concat([var.region], var.further_regions)
    storage_account_type = "Standard_LRS"
  }
}

build {
  sources = ["source.azure-arm.node"]

  provisioner "file" {
    source      = var.source
    destination = "/tmp/remora.tar.gz"
  }

  # The same that deploy/azure/up gives to Azure Image Builder.
  provisioner "shell" {
    environment_vars = ["PYTHON=${var.python}"]
    inline           = jsondecode(file("${path.root}/image-steps.json"))
  }

  # Last: it takes away the user that Packer comes as.
  provisioner "shell" {
    execute_command = "chmod +x {{ .Path }}; {{ .Vars }} sudo -E sh '{{ .Path }}'"
    inline          = ["/usr/sbin/waagent -force -deprovision+user && export HISTSIZE=0 && sync"]
  }
}
