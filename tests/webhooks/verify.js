// Verifies requests with the library of Standard Webhooks for JavaScript. Reads an array of
// {secret, headers, body} as JSON, and writes an array of what each gave: "ok", or the error.
const { Webhook } = require("standardwebhooks");

const requests = JSON.parse(require("fs").readFileSync(0, "utf8"));
const results = requests.map(({ secret, headers, body }) => {
  try {
    new Webhook(secret).verify(body, headers, { jsonParse: false });
    return "ok";
  } catch (error) {
    return error.message;
  }
});
console.log(JSON.stringify(results));
