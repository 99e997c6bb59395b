"""Which of a node's environment variables the command of a job sees (pure).

A node's own variables may hold its credentials for a cloud, for a registry or for the cluster, under names that no
list has in full.  So those that commands need are named here, and all others stay with the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: What marks every process of a machine, so that the local provider ends all of them with it.
MACHINE_MARKS = ("REMORA_MACHINE", "REMORA_NODE_ID")
#: Names, in any case of letters.
_NAMES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TZDIR", "TERM", "COLORTERM"),
        *("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "HOSTNAME", "TMPDIR", "VIRTUAL_ENV"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
#: Beginnings of names: of the interpreter and its libraries, accelerators, collectives, and of installers.
_BEGINNINGS = (
    *("LC_", "LD_", "MALLOC_", "GLIBC_", "PYTHON", "PYENV_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "NUMPY_", "DNNL_", "ONEDNN_"),
    *("TORCH", "PYTORCH_", "ATEN_", "C10_", "KINETO_", "TRITON_", "XLA_", "JAX_", "TF_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "ROCR_", "HIP_", "HSA_", "ZE_", "SYCL_"),
    *("NCCL_", "GLOO_", "UCX_", "UCC_", "FI_", "CCL_", "MLX5_", "RDMAV_", "OMPI_", "PMIX_", "ORTE_", "OPAL_"),
    *("PIP_", "UV_"),
)
#: Parts of names that hold secrets, whatever they begin with.
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "USERNAME", "_KEY")
#: A user's name or a token, with a password or without one, in a URL.
_CREDENTIALS = re.compile(r"://[^/@\s]+@")


def machine_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Those of a node's variables that a command may see; URLs with credentials in them are none, under any name."""
    return {
        name: value for name, value in inherited.items() if _is_shown(name) and not _CREDENTIALS.search(value)
    }


def _is_shown(name: str) -> bool:
    upper = name.upper()
    if name in MACHINE_MARKS or upper in _NAMES:
        return True
    return upper.startswith(_BEGINNINGS) and not any(part in upper for part in _SECRET)
