"""The relay: runs on a host while clusterctl brings it blobs, and ends with the SSH session."""
