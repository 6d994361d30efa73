# Start node $1 in the background, with its data in fresh/quorum/$1. VOTERS has the voters; others are only brokers.
address=$(echo "$VOTERS" | tr , '\n' | sed -n "s/^$1@//p")
mkdir -p fresh/quorum
python -m minibroker.quorum "$1" "fresh/quorum/$1" "${address:-127.0.0.1:0}" "$VOTERS" \
  --set min.insync.replicas=2 > "fresh/ready-$1.txt" 2> "fresh/log-$1.txt" &
echo $! > "fresh/pid-$1"
