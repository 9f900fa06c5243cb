"""Checks of what was released, by someone who has nothing but the model and the releases."""

from seqveil.receive.audit.against import Against, BatchAgainst, Departure, wrong_model_bound
from seqveil.receive.audit.exact import Asked, Audit, BatchAudit, Report

__all__ = ["Against", "Asked", "Audit", "BatchAgainst", "BatchAudit", "Departure", "Report", "wrong_model_bound"]
