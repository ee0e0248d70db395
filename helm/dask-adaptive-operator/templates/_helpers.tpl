{{/* Name of the release's objects. */}}
{{- define "operator.name" -}}
{{- $base := .Values.nameOverride | default "dask-adaptive" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $base .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $base | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of cluster-scoped objects: differs for two releases of one name in two namespaces. */}}
{{- define "operator.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "operator.name" .) -}}
{{- end -}}

{{/*
Name of the Roles of all operators of one controllerName. It is the same in every release, so Helm refuses a second one,
which would serve the same policies. The operator's Lease has this name too (controller/lease.py).
*/}}
{{- define "operator.rightsName" -}}
{{- printf "dask-adaptive-operator-%s" .Values.controllerName -}}
{{- end -}}

{{- define "operator.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "operator.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/*
A value with an alias. Arguments: name, value, default (also for null), the alias, its value.
*/}}
{{- define "operator.aliased" -}}
{{- $value := kindIs "invalid" (index . 1) | ternary (index . 2) (index . 1) | toString -}}
{{- $other := index . 4 -}}
{{- if kindIs "invalid" $other -}}
{{- $value -}}
{{- else if and (ne $value (index . 2)) (ne $value (toString $other)) -}}
{{- fail (printf "%s is %s, and its alias %s is %v: set only one of them" (index . 0) $value (index . 3) $other) -}}
{{- else -}}
{{- $other -}}
{{- end -}}
{{- end -}}

{{- define "operator.replicas" -}}
{{- include "operator.aliased" (list "replicas" .Values.replicas "1" "replicaCount" .Values.replicaCount) -}}
{{- end -}}

{{/* The value of app.kubernetes.io/name. */}}
{{- define "operator.app" -}}
{{- .Values.nameOverride | default "dask-adaptive-operator" -}}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
{{ include "operator.chartLabels" . }}
{{- end -}}

{{/* Labels of all objects, including pods of hooks, which our selectors must not match. */}}
{{- define "operator.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "operator.selector" -}}
app.kubernetes.io/name: {{ include "operator.app" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Follows an object's labels: commonAnnotations, if there are any. */}}
{{- define "operator.annotations" -}}
{{- with .Values.commonAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* Metadata of a pod. Arguments: the root, and the suffix of app.kubernetes.io/name. */}}
{{- define "operator.podMetadata" -}}
{{- $root := index . 0 -}}
{{- $labels := merge (dict "app.kubernetes.io/name" (printf "%s%s" (include "operator.app" $root) (index . 1)) "app.kubernetes.io/instance" $root.Release.Name) (include "operator.chartLabels" $root | fromYaml) -}}
labels: {{- merge $labels $root.Values.podLabels | toYaml | nindent 2 }}
{{- end -}}

{{/* Annotations of a pod, as a map. Arguments: the root, and the pod's own ones. */}}
{{- define "operator.podAnnotations" -}}
{{- $root := index . 0 -}}
{{- merge (deepCopy $root.Values.podAnnotations) (index . 1) $root.Values.commonAnnotations | toYaml -}}
{{- end -}}

{{/* The image. No default, because none is published. */}}
{{- define "operator.image" -}}
{{- with .Values.image -}}
{{- if not .repository -}}
{{- $example := "registry.example.com/dask-adaptive" -}}
{{- $built := printf "%s:%s" $example $.Chart.AppVersion -}}
{{- fail (printf "image.repository is not set, and no image is published yet: build one in a checkout (docker build -t %s . && docker push %s) and give it with --set image.repository=%s" $built $built $example) -}}
{{- end -}}
{{- $last := splitList "/" .repository | last -}}
{{- if or (contains ":" $last) (contains "@" $last) -}}
{{- fail (printf "image.repository is %s: write its tag as image.tag, or its digest as image.digest" .repository) -}}
{{- end -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The part of a pod's spec that all our pods share. */}}
{{- define "operator.podSpec" -}}
# Otherwise variables of Services named dask-adaptive-… would be read as settings of the operator.
enableServiceLinks: false
serviceAccountName: {{ include "operator.serviceAccount" . }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
{{- range . }}
{{- if kindIs "string" . }}
{{- fail (printf "imagePullSecrets is a list of objects since 0.2.0: write {name: %s} for %s (--set 'imagePullSecrets[0].name=%s')" . . .) }}
{{- end }}
{{- end }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
- {name: tmp, emptyDir: {}}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The part of a container that all our containers share. */}}
{{- define "operator.container" -}}
image: {{ include "operator.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 0 }}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Entries of `env`: the namespaces that the operator serves and the uninstall hook cleans. */}}
{{- define "operator.namespacesEnv" -}}
{{- if .Values.watch.namespaces -}}
- {name: DASK_ADAPTIVE_NAMESPACES, value: {{ join " " .Values.watch.namespaces | quote }}}
{{- else if .Values.watch.namespaceSelector -}}
- {name: DASK_ADAPTIVE_NAMESPACE_SELECTOR, value: {{ include "operator.namespaceSelectorText" . | quote }}}
{{- end }}
{{- end -}}

{{/* watch.namespaceSelector as a query parameter: team=a,env notin (dev),!old */}}
{{- define "operator.namespaceSelectorText" -}}
{{- $parts := list -}}
{{- with .Values.watch.namespaceSelector -}}
{{- range $key, $value := .matchLabels -}}
{{- $parts = append $parts (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- range .matchExpressions -}}
{{- $values := join "," .values -}}
{{- if eq .operator "In" -}}
{{- $parts = append $parts (printf "%s in (%s)" .key $values) -}}
{{- else if eq .operator "NotIn" -}}
{{- $parts = append $parts (printf "%s notin (%s)" .key $values) -}}
{{- else if eq .operator "Exists" -}}
{{- $parts = append $parts .key -}}
{{- else -}}
{{- $parts = append $parts (printf "!%s" .key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join "," $parts -}}
{{- end -}}

{{/* A labelSelector of the namespaces that are served, for webhooks and NetworkPolicies. Empty: all. */}}
{{- define "operator.namespaceSelector" -}}
{{- if .Values.watch.namespaces -}}
matchExpressions:
- {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .Values.watch.namespaces }}}
{{- else if .Values.watch.namespaceSelector -}}
{{- toYaml .Values.watch.namespaceSelector -}}
{{- end -}}
{{- end -}}

{{/* Annotations of the uninstall hook. Arguments: the root, the hook's weight. */}}
{{- define "operator.tidyHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- with (index . 0).Values.commonAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Host name by which the API server calls the webhook. */}}
{{- define "operator.webhookHost" -}}
{{- printf "%s-webhook.%s.svc" (include "operator.name" .) .Release.Namespace -}}
{{- end -}}

{{/* Whether the operator makes the webhook's certificate: true or false. */}}
{{- define "operator.makesCertificate" -}}
{{- with .Values.certificates -}}
{{- not (or .existingSecret .certManager.enabled) -}}
{{- end -}}
{{- end -}}

{{/*
Name of the Secret with the webhook's certificate. cert-manager's has another name than ours: it stays when its
Certificate is deleted, and Kubernetes does not change a Secret's type.
*/}}
{{- define "operator.certificateSecret" -}}
{{- with .Values.certificates -}}
{{- if .existingSecret -}}
{{- .existingSecret -}}
{{- else -}}
{{- printf "%s-%s" (include "operator.name" $) (ternary "cert-manager" "certificate" .certManager.enabled) -}}
{{- end -}}
{{- end -}}
{{- end -}}
