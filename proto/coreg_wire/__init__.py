"""The code that sites and the coordinator share: protobuf messages, their codec, identities, files,
terminal output.
"""
