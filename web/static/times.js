// Shows times in the viewer's zone, with the store's time, in UTC, beside them.

const local = new Intl.DateTimeFormat(document.documentElement.lang, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});

export function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.getAttribute("datetime"));
    if (Number.isNaN(at.getTime())) continue;
    const utc = at.toISOString().slice(11, 19) + " UTC";
    const text = at.getTimezoneOffset() === 0 ? local.format(at) + " UTC" : local.format(at) + " · " + utc;
    if (time.textContent !== text) time.textContent = text;
  }
}
