{{/* What the operator may do where Dask clusters are. Each rule says who needs it. */}}
{{- define "operator.rules" -}}
# The watches (kube/world.py), and the lists that check them.
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies]
  verbs: [list, watch]
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters, daskworkergroups, daskautoscalers]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [list, watch]
# Policies made from a DaskCluster's annotations (controller/annotations.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies]
  verbs: [create, patch, delete]
# What is reported (kube/reporter.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# Scaling: the number of workers, and the Deployment of a worker that has left (kube/platform.py).
- apiGroups: [kubernetes.dask.org]
  resources: [daskworkergroups/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [delete]
# Whether the namespace refuses the agent (kube/agent_config.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- if .Values.webhook.enabled }}
# The webhook: whose scheduler it is, and the ConfigMap with the agent (kube/agent_config.py). No
# ConfigMap can be read, only written: RBAC can't restrict `create` to a name.
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters]
  verbs: [get]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch]
{{- end }}
{{- end -}}
