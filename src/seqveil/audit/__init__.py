"""Checks of what was released, by someone who has nothing but the model and the releases."""

from seqveil.audit.exact import Audit, BatchAudit, Report

__all__ = ["Audit", "BatchAudit", "Report"]
