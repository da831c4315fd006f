for attempt in {1..30}; do
  address=$(reach "$MASTER_ADDR" 2>/dev/null) && break
  sleep 2
done
: "${address:?the first node, $MASTER_ADDR, is not known here}"
case $address in 127.* | ::1) ;; *)
  export PET_LOCAL_ADDR="$address"
  interface=$(ip -o addr show to "$address" 2>/dev/null | awk 'NR == 1 { print $2 }') || true
  [ -z "$interface" ] || export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
@hccl@
esac
