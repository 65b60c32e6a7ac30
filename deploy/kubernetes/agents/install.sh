#!/bin/sh
# Installs or updates the agent as a systemd unit of this node, and then waits for a signal. A changed program, unit or
# setting restarts the agent, which adopts its processes; without a change the agent continues.
#
#   install.sh SETTINGS CA   a folder with one file per variable; a folder with the ca.pem of NATS, or an empty one
set -eu
node=${NODE_ROOT:-/node}
here=$(dirname "$0")
changed=

# put MODE FROM TO: copies FROM to a file of the node atomically.
put() {
  [ -f "$node$3" ] && cmp -s "$2" "$node$3" && return
  mkdir -p "$(dirname "$node$3")"
  cp "$2" "$node$3.new"
  chmod "$1" "$node$3.new"
  mv "$node$3.new" "$node$3"
  changed=yes
}

# on_node runs a command in the namespaces of the node.
on_node() { nsenter --target 1 --mount --uts --ipc --net --pid -- "$@"; }

identity=$(cat "$1/PROCFLEET_IDENTITY")
[ -f "$node$identity" ] || {
  echo "this node has no $identity: enroll it, and put the file there" >&2
  exit 1
}

umask 077
settings=$(mktemp)
for file in "$1"/*; do
  printf '%s=%s\n' "$(basename "$file")" "$(cat "$file")"
done >"$settings"
ca=/etc/procfleet/nats-ca.pem
if [ -f "$2/ca.pem" ]; then
  put 644 "$2/ca.pem" "$ca"
  printf 'PROCFLEET_NATS_CA=%s\n' "$ca" >>"$settings"
fi

put 755 "${AGENT:-/usr/local/bin/procfleet-agent}" /usr/local/bin/procfleet-agent
put 644 "$here/procfleet-agent.service" /etc/systemd/system/procfleet-agent.service
put 600 "$settings" /etc/procfleet/agent.env
rm -f "$settings"

trap 'exit 0' TERM INT
on_node systemctl daemon-reload
on_node systemctl enable --quiet procfleet-agent
if [ -n "$changed" ]; then
  echo "installed; (re)starting the agent"
  # Do not wait: the agent is ready when it is connected to NATS, which the probe checks.
  on_node systemctl restart --no-block procfleet-agent
else
  on_node systemctl start --no-block procfleet-agent
fi
echo "done"
while :; do
  sleep 3600 &
  wait $!
done
