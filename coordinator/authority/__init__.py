"""The certificate authority, its certificates, and the allow-list of sites."""
