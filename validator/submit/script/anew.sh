# The recipe starts anew (overwrite_output_dir): what another job has left is set aside, once. The folder that is made
# tells a later start of this job, which goes on, from its first
earlier="$output/earlier-$RDZV_ID"
if [ ! -e "$earlier" ]; then
  mkdir -p "$earlier"
  find "$output" -mindepth 1 -maxdepth 1 ! -name 'earlier-*' -exec mv {} "$earlier" \;
fi
