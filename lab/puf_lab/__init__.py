"""The lab: experiments that measure what forgetting costs and what a model still knows afterwards."""
