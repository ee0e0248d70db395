"""
The Platform that is this machine: a worker is a process that is started again when it dies, as a
Deployment's pod is. For `rehearse`, the demo and the loop's tests; needs no Kubernetes.
"""
