#!/bin/sh
# Puts the agent on this node as a unit of its systemd, or brings it up to date, and then waits to be told to stop. What
# did not change is left alone; a changed program, unit or setting restarts the agent, which adopts what it supervises.
#
#   install.sh SETTINGS CA   a folder with a file for each variable; one with the ca.pem of NATS, or nothing
set -eu
node=${NODE_ROOT:-/node}
here=$(dirname "$0")
changed=

# put MODE FROM TO: makes a file of the node like FROM, whole or not at all.
put() {
  [ -f "$node$3" ] && cmp -s "$2" "$node$3" && return
  mkdir -p "$(dirname "$node$3")"
  cp "$2" "$node$3.new"
  chmod "$1" "$node$3.new"
  mv "$node$3.new" "$node$3"
  changed=yes
}

# on_node runs a command as if it were typed on the node.
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
  # Without waiting: it is ready when NATS is, which the probe asks.
  on_node systemctl restart --no-block procfleet-agent
else
  on_node systemctl start --no-block procfleet-agent
fi
echo "done"
while :; do
  sleep 3600 &
  wait $!
done
