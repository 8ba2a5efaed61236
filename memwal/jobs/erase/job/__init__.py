"""`memwal erase`, `erase verify` and `erase list`: tables in, report out."""

from memwal.jobs.erase.job.erasing import EraseOptions, run_erase
from memwal.jobs.erase.job.proofs import ProofOptions, run_list, run_verify

__all__ = ["EraseOptions", "ProofOptions", "run_erase", "run_list", "run_verify"]
