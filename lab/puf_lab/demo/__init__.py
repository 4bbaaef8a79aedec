"""`puf-lab demo`: a federation of processes forgets one client, with two references to compare with."""
