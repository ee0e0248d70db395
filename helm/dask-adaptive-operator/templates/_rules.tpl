{{/* The operator's rights in namespaces with Dask clusters. Each rule names the code that needs it. */}}
{{- define "operator.rules" -}}
# Watches, and the lists that check them (kube/cache/world.py). The webhook also lists policies: when a scheduler's
# pod is created, its policy may be newer than the watch's state (controller/webhook.py).
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
# Drains workers of nodes that are about to be removed (kube/nodes.py). Nodes are cluster-scoped: with
# watch.namespaces, watch.nodes adds a ClusterRole for them.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
{{- if or (not .Values.watch.namespaces) (eq .Values.watch.budgets "Namespaced") }}
{{ include "operator.budgetRules" . }}
{{- end }}
# Policies made from a DaskCluster's annotations or from an adopted DaskAutoscaler, whose annotation
# pauses upstream's autoscaler and resumes it (controller/annotated_policies.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies]
  verbs: [create, patch, delete]
- apiGroups: [kubernetes.dask.org]
  resources: [daskautoscalers]
  verbs: [patch]
# Status and events (kube/reporter.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivepolicies/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# The history of a policy's decisions (kube/reporter.py), and the agent (kube/agent_config.py).
# RBAC can't restrict `create` to a name. There is no right to read ConfigMaps: the operator reads the
# answer to a patch.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create, patch]
# The right to write the agent (kube/agent_config.py), which is code. The kind does not exist; an admission policy
# checks for this right.
- apiGroups: [dask-adaptive.dev]
  resources: [agents]
  verbs: [create]
# Sets the number of workers, and deletes the Deployment of a worker that has left (kube/platform.py).
- apiGroups: [kubernetes.dask.org]
  resources: [daskworkergroups/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [delete]
{{- if .Values.allowDeleteCluster }}
# Deletes unused clusters if their policy asks for it (kube/platform.py, delete_cluster).
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters]
  verbs: [delete]
{{- end }}
# Deletes the pods of workers that are replaced in place (kube/platform.py, restart_worker).
- apiGroups: [""]
  resources: [pods]
  verbs: [delete]
{{- with .Values.scheduler.tls }}
{{- with append .secretNames .secretName | compact | uniq }}
# Reads certificates for schedulers that accept only TLS (kube/route.py).
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- end }}
# Reads whether the namespace refuses the agent (kube/agent_config.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
{{- if .Values.watch.namespaceSelector }}
# Finds the namespaces that watch.namespaceSelector selects (controller/app.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end }}
{{- if .Values.webhook.enabled }}
# The webhook reads the pod's owner, and its group's grace period (controller/webhook.py).
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters, daskworkergroups]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* AdaptiveBudgets are cluster-scoped unless watch.budgets is Namespaced (controller/budget_keeper.py). */}}
{{- define "operator.budgetRules" -}}
# Reads AdaptiveBudgets, and writes who uses how much of them (controller/budget_keeper.py).
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivebudgets]
  verbs: [list, watch]
- apiGroups: [dask-adaptive.dev]
  resources: [adaptivebudgets/status]
  verbs: [patch]
{{- if ne .Values.watch.budgets "Namespaced" }}
# Reads the labels by which a budget selects namespaces (kube/shared_budgets.py).
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end }}
{{- end }}
