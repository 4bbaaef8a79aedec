"""`puf-client run`: a worker that trains and evaluates with this client's data, model, task and device."""
