"""`buildfarm build --scheduler`: sends builds and proofs to workers, and collects what they made."""
