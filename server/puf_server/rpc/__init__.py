"""The services of the contract over grpc.aio: calls, requests, messages, notifications, model streams."""
