{{/* What the operator may do where Dask clusters are. Each rule says who needs it. */}}
{{- define "operator.rules" -}}
# The watches (kube/world.py), and the lists that check them. The webhook lists policies, too: one
# may be younger than what the watch has told when its scheduler's pod is made (kube/policies.py).
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
  resources: [pods, services, resourcequotas]
  verbs: [list, watch]
{{- if not .Values.watch.namespaces }}
# Workers leave nodes that are about to go (kube/nodes.py), and a free GPU is looked for before one
# with a GPU is replaced (kube/gpus.py). Nodes are in no namespace, so an operator with Roles only
# does without.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
# Policies made from a DaskCluster's annotations or from a DaskAutoscaler that is taken over, whose
# annotation puts upstream's autoscaler to rest, and wakes it (controller/annotations.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies]
  verbs: [create, patch, delete]
- apiGroups: [kubernetes.dask.org]
  resources: [daskautoscalers]
  verbs: [patch]
# What is reported (kube/reporter.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# The history of a policy's decisions (kube/decision_log.py), and the agent (kube/agent_config.py).
# RBAC can't restrict `create` to a name. There is no right to read ConfigMaps: what has to be read is
# the answer to a patch.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch]
{{- if .Values.hints.enabled }}
# Annotations on workers' pods: who pins them, and hints to autoscalers (kube/marks.py).
- apiGroups: [""]
  resources: [pods]
  verbs: [patch]
{{- end }}
# Scaling: the number of workers, and the Deployment of a worker that has left (kube/platform.py).
- apiGroups: [kubernetes.dask.org]
  resources: [daskworkergroups/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [delete]
{{- if .Values.allowDeleteCluster }}
# Clusters that nobody uses, where a policy says so (kube/platform.py, delete_cluster).
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters]
  verbs: [delete]
{{- end }}
# Workers that are replaced in their place: the pod is deleted (kube/platform.py, restart_worker).
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
# Whether the namespace refuses the agent (kube/agent_config.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- if .Values.webhook.enabled }}
# The webhook: whose pod it is, and whether its group sets a grace period (controller/injector.py).
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters, daskworkergroups]
  verbs: [get]
{{- end }}
{{- end -}}
