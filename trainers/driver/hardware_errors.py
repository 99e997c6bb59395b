"""Which lines of a command's standard error say that a GPU or a collective failed, and not the script (pure).

What may be the fault of the script or of its image is not among them: an illegal address, an assertion on the device, a
launch that failed for no known reason, memory that is used up, a device that another process has, a driver that
does not fit to the CUDA of the image.
Sources: the texts and meanings of `cudaError` in the CUDA Runtime API, section "Data types used by CUDA Runtime", and
of `nvmlReturn_t` in the NVML API reference; for collectives `ProcessGroupNCCL.cpp` and `NCCLUtils.cpp` of PyTorch.
"""

from __future__ import annotations

import re

#: Texts of errors with what they mean.
_MEANINGS = {
    # cudaErrorECCUncorrectable, 214
    "uncorrectable ECC error encountered": "a GPU has memory that cannot be corrected",
    # cudaErrorNvlinkUncorrectable, 220
    "uncorrectable NVLink error detected": "a link between GPUs failed",
    # cudaErrorSystemNotReady, 802
    "system not yet initialized": "the service that joins its GPUs does not run",
    # NVML_ERROR_GPU_IS_LOST, 15
    "GPU is lost": "a GPU is lost",
    "GPU has fallen off the bus": "a GPU is lost",
}
_ANY = re.compile("|".join(map(re.escape, _MEANINGS)))
#: What every text of CUDA and NVML stands behind in a line.
_SPEAKER = re.compile(r"CUDA|cuda|NVML|nvml|NVRM|ncclUnhandledCudaError")


def gpu_failure(text: str) -> str | None:
    """What one or more lines of standard error say of a GPU that failed, a clause; None: nothing.

    Linear in the length of the text.
    """
    for found in _ANY.finditer(text):
        begin, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
        if _SPEAKER.search(text, begin, len(text) if end < 0 else end):
            return _MEANINGS[found[0]]
    return None


#: Texts with which PyTorch ends a process by SIGABRT because a collective cannot end, with what they mean.
_COLLECTIVES = {
    # WorkNCCL::checkTimeout
    "Watchdog caught collective operation timeout": "NCCL's watchdog ended it, because a collective did not end",
    # HeartbeatMonitor::runLoop
    "due to ProcessGroupNCCL watchdog hang": "NCCL's monitor ended it, because its watchdog hung",
    # getNcclErrorDetailStr of ncclRemoteError
    "possibly due to a network error or a remote process exiting prematurely": (
        "NCCL's watchdog ended it, because a peer or the network was lost"
    ),
}
_ANY_COLLECTIVE = re.compile("|".join(map(re.escape, _COLLECTIVES)))


def collective_failure(text: str) -> str | None:
    """What lines of standard error say of a collective that could not end, a clause; None: nothing.

    The watchdog also ends a process in which the script's own kernel failed, which is the script's error.
    """
    if "CUDA error: " in text:
        return None
    found = _ANY_COLLECTIVE.search(text)
    return None if found is None else _COLLECTIVES[found[0]]
