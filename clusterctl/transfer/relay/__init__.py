"""The relay: runs on a host during a transfer of blobs, and ends with the SSH session."""
