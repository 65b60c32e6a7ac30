// Shows times in the viewer's zone, with the store's time, in UTC, beside them.

const pad = (n) => String(n).padStart(2, "0");

function local(at) {
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.getAttribute("datetime"));
    if (Number.isNaN(at.getTime())) continue;
    const utc = at.getTimezoneOffset() === 0 ? "UTC" : "· " + at.toISOString().slice(11, 19) + " UTC";
    const text = local(at) + " " + utc;
    if (time.textContent !== text) time.textContent = text;
  }
}
