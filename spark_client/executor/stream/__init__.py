"""One gRPC stream of a task to a server. If it breaks, it continues on another server.

call_stream     sends rows and returns outcomes; in_flight: how much may be unanswered, and what a result answers
connecting      chooses servers; connection: one stream on one server
balancing       decides when a stream reconnects, and compares the loads of servers
transport       the network; channels and endpoints: addresses, shared by the tasks of a worker
chunks          the rows of a message, kept until they are answered
accounts        the statistics of a stream
task            information about the running Spark task; runtime: what tasks use of their process
"""
