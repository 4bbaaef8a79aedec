"""What a client stores between runs: forgotten samples, sample usage, local models, receipts."""
