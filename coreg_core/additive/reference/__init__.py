"""Reference solutions of the additive objective: closed form, dense training, in-memory driver."""
