"""Sample extensions for the gate: correct ops, ops with one defect each, a companion, a crash at import."""
