"""One gRPC stream of a task to a server: opened, kept full, resumed elsewhere when it breaks.

call_stream     rows in, outcomes out; message_sizing: how large messages are and how many may be unanswered
connecting      which server, and which one next; connection: one stream as it is
transport       the network below; channels and endpoints: which addresses, shared by the tasks of a worker
chunks, parts   the rows of a message, kept until they are answered; pending: all of them
accounts        what a stream counts and reports
task            what Spark says of the running task
"""
