"""A fleet: many clients and servers in virtual time. The client's own code decides which server a stream uses."""
