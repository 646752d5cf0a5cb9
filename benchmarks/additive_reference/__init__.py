"""The additive objective solved with all sites in memory: what runs over messages are held to."""
